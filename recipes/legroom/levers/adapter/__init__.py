"""adapter: small matrices beside frozen layers (LoRA, QLoRA)."""
