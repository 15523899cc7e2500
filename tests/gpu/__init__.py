"""Tests on a real GPU. They have never run: no machine of this project has had one.

    pytest -m gpu tests/gpu

They use the first GPU of CUDA_VISIBLE_DEVICES, in processes of their own, because `tests/conftest.py` hides GPUs from
this one. Without a GPU, they are skipped.
"""
