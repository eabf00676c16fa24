# SPDX-License-Identifier: Apache-2.0
# kdtree_python_site(<var>): the site-packages folder of KDTREE_PYTHON that holds torch, without importing torch (which
# takes seconds); empty where there is none.
function(kdtree_python_site variable)
  if(NOT KDTREE_PYTHON)
    set(${variable} "" PARENT_SCOPE)
    return()
  endif()
  execute_process(
    COMMAND ${KDTREE_PYTHON} -c
      "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(os.path.dirname(s.origin)) if s and s.origin else '', end='')"
    OUTPUT_VARIABLE site RESULT_VARIABLE failed ERROR_VARIABLE said)
  if(failed)
    message(FATAL_ERROR "KDTREE_PYTHON=${KDTREE_PYTHON} can't be run (${failed}): ${said}")
  endif()
  set(${variable} "${site}" PARENT_SCOPE)
endfunction()

# kdtree_find_torch(): the target kdtree_libtorch, from the headers and libraries inside that Python's torch package.
function(kdtree_find_torch)
  if(NOT KDTREE_PYTHON)
    message(FATAL_ERROR "the torch op needs -DKDTREE_PYTHON=<the engine's python3> (or -DKDTREE_WITH_TORCH=OFF)")
  endif()
  kdtree_python_site(site)
  if(NOT EXISTS "${site}/torch/include/torch/csrc/stable/library.h")
    message(FATAL_ERROR "${KDTREE_PYTHON} has no torch with a stable ABI (torch 2.10 or newer); found: '${site}'")
  endif()
  add_library(kdtree_libtorch INTERFACE)
  target_include_directories(kdtree_libtorch SYSTEM INTERFACE "${site}/torch/include")
  target_link_directories(kdtree_libtorch INTERFACE "${site}/torch/lib")
  target_link_libraries(kdtree_libtorch INTERFACE -Wl,--no-as-needed torch_cpu c10 -Wl,--as-needed)
  if(KDTREE_WITH_CUDA)
    if(NOT EXISTS "${site}/torch/lib/libtorch_cuda.so")
      message(FATAL_ERROR "torch in ${site} was built without CUDA: use -DKDTREE_WITH_CUDA=OFF or an engine with a CUDA torch")
    endif()
    target_link_libraries(kdtree_libtorch INTERFACE -Wl,--no-as-needed torch_cuda -Wl,--as-needed)
  endif()
endfunction()
