"""From files to batches: reading -> text -> encoding -> batching; inspection reports on a corpus before training."""
