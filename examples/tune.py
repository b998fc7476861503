"""How should GPT-2 be trained on 16 A100s? One call, and a result to look at."""

from autotune import tune

result = tune("gpt2", "dgx-a100", devices=16, trials=30)

print(result)  # in a notebook, the result shows itself

assert result.best is not None
print("use", result.best.strategy.to_dict())
print("lost against exhaustive search:", result.regret)
