# SPDX-License-Identifier: Apache-2.0
"""The test engine's process model: launcher, ranks, HTTP. Standard library only; what a rank computes is a port."""
