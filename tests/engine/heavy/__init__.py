# SPDX-License-Identifier: Apache-2.0
"""The heavy flavour: SGLang's own attention, KV pool, allocator, routing and process groups."""
