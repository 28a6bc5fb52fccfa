//! Model files: what is in a GGUF file or a safetensors directory.
