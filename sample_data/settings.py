"""Settings of the run: seeds, mixes of problems, sizes and learning rates."""

from pathlib import Path

HERE = Path(__file__).resolve().parent
POLICY = HERE / "policy"
SEED = 20
SFT_MODES = {"full": 0.6, "tool": 0.22, "brief": 0.18}
RL_MODES = {"full": 0.82, "brief": 0.18}
TOOL_MODES = {"tool": 1.0}
SFT = {"steps": 420, "peak": 3e-3, "flat": 0.4, "ramp": 150}
MORE_SFT = {"steps": 60, "peak": 1e-3, "flat": 0.0, "ramp": 150}
PASS_ENOUGH, PASS_ALLOWED, MAX_ROUNDS = 0.415, (0.3, 0.8), 20
STEPS, GROUPS, SAMPLES = 9, 32, 8
SHIPPED = (0, 4, 8)
RATE = 1e-4
