"""What the blocks and stages of a plan take in seconds and hold in bytes."""
