/* SPDX-License-Identifier: Apache-2.0 */
/* What the light test engine's torch.ops.load_library looks for: the Python module that registers the ops. */
__attribute__((visibility("default"))) const char* kdtree_light_ops_module(void);
const char* kdtree_light_ops_module(void) { return "kdtree_kernel.stand_in"; }
