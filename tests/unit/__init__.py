"""Tests of single modules: no engine, no process, no network."""
