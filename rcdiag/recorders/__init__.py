"""Recorders that turn the data of a trainer or an engine into rows of `rcdiag.Recorder`.

- `rcdiag.recorders.trl`: every batch of TRL's GRPOTrainer
- `rcdiag.recorders.vllm`: the outputs of `vllm.LLM.generate`
- `rcdiag.recorders.openai`: responses of an OpenAI-compatible server, with token ids
"""
