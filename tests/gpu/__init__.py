"""Tests on GPUs: a real one where there is one, and otherwise stand-ins (`standin/`), which need a C++ compiler.

    pytest -m gpu tests/gpu

A real GPU is the first of CUDA_VISIBLE_DEVICES. The tests run in processes of their own, because `tests/conftest.py`
hides GPUs from this one.
"""
