"""Every strategy of a space: evaluated one after the other, or ruled out by proof."""
