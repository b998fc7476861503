"""What does one plan cost, and where does its time go?"""

import distir

model = distir.load_model("gpt2-medium")
cluster = distir.load_cluster("hgx-h100", devices=8)
strategy = distir.Strategy(dp=2, tp=2, pp=2, microbatches=8)

result = distir.simulate(model, strategy, cluster, batch_size=64)

print(strategy.label, "fits" if result.feasible else result.reason)
print(f"{result.metrics['iteration_seconds'] * 1e3:.1f} ms per iteration")
for number, stage in enumerate(result.stages):
    shares = {kind: f"{seconds * 1e3:.1f} ms" for kind, seconds in stage.seconds.items()}
    print("stage", number, shares)
