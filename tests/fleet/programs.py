"""Programs that tests start in place of a training."""

# Takes no processor, for tests that are about its run; one line an update from the first rank.
LIGHT = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
for update in range(1, 100000):
    loss = torch.ones(1) / update
    dist.all_reduce(loss)
    if dist.get_rank() == 0:
        print(f"update {update} loss {loss.item():.6f}", flush=True)
    time.sleep(0.1)
"""
