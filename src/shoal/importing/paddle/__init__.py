"""PaddleClas: a YAML with sections Global, Arch, Loss, Optimizer, DataLoader … as a recipe."""
