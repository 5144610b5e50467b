"""Ready-made recorders turn what a trainer or an engine holds into rows of `rcdiag.Recorder`.

- `rcdiag.recorders.trl`: every batch of TRL's GRPOTrainer
- `rcdiag.recorders.vllm`: what `vllm.LLM.generate` returns
- `rcdiag.recorders.openai`: responses of an OpenAI-compatible server, with token ids
"""
