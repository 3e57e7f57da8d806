"""Coming from elsewhere: jobs and weights of MXNet's, PyTorch's and PaddleClas's examples as Shoal's own."""
