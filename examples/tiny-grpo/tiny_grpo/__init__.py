"""A small asynchronous GRPO job: real weights, real vLLM samplers, and the runtime contract of an RLJob, in a few readable files."""
