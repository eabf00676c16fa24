# SPDX-License-Identifier: Apache-2.0
# nvcc is called directly: CMake's own CUDA language wants a whole toolkit, and the one that comes with an engine's Python
# environment (nvcc and headers, libcudart.so.13 without its .so link) is enough for us. Looked for, in this order, in
# KDTREE_CUDA_HOME, the environment's CUDA_HOME, PATH, KDTREE_PYTHON's nvidia/cu13 package, /usr/local/cuda.
set(KDTREE_CUDA_HOME "" CACHE PATH "Folder whose bin/nvcc to use; empty = look for one")

kdtree_python_site(kdtree_site)
set(kdtree_nvcc_hints)
if(KDTREE_CUDA_HOME)
  list(APPEND kdtree_nvcc_hints ${KDTREE_CUDA_HOME}/bin)
else()
  if(DEFINED ENV{CUDA_HOME})
    list(APPEND kdtree_nvcc_hints $ENV{CUDA_HOME}/bin)
  endif()
  find_program(kdtree_nvcc_path nvcc NO_CMAKE_SYSTEM_PATH NO_CACHE)
  if(kdtree_nvcc_path)
    cmake_path(GET kdtree_nvcc_path PARENT_PATH kdtree_nvcc_folder)
    list(APPEND kdtree_nvcc_hints ${kdtree_nvcc_folder})
  endif()
  list(APPEND kdtree_nvcc_hints ${kdtree_site}/nvidia/cu13/bin /usr/local/cuda/bin)
endif()
find_program(KDTREE_NVCC nvcc PATHS ${kdtree_nvcc_hints} NO_DEFAULT_PATH)
if(NOT KDTREE_NVCC)
  list(JOIN kdtree_nvcc_hints ", " kdtree_looked)
  message(FATAL_ERROR "no nvcc in ${kdtree_looked}. Give -DKDTREE_CUDA_HOME=<folder>, or build the CPU op only: -DKDTREE_WITH_CUDA=OFF")
endif()
execute_process(COMMAND ${KDTREE_NVCC} --version OUTPUT_VARIABLE kdtree_said RESULT_VARIABLE kdtree_failed ERROR_VARIABLE kdtree_said)
string(REGEX MATCH "release ([0-9.]+)" kdtree_match "${kdtree_said}")
set(KDTREE_NVCC_VERSION "${CMAKE_MATCH_1}")
if(kdtree_failed OR KDTREE_NVCC_VERSION VERSION_LESS 12.8)
  message(FATAL_ERROR "${KDTREE_NVCC} is version '${KDTREE_NVCC_VERSION}', 12.8 or newer is needed (sm_120)")
endif()
message(STATUS "nvcc ${KDTREE_NVCC_VERSION}: ${KDTREE_NVCC}")
cmake_path(GET KDTREE_NVCC PARENT_PATH kdtree_cuda_bin)
cmake_path(GET kdtree_cuda_bin PARENT_PATH kdtree_cuda_home)

# The CUDA runtime that torch brings is the one in the engine's process: link that very one where there is one.
file(GLOB kdtree_cudart_found ${kdtree_site}/nvidia/cu13/lib/libcudart.so.* ${kdtree_cuda_home}/lib64/libcudart.so
  ${kdtree_cuda_home}/lib/libcudart.so.* ${kdtree_cuda_home}/targets/x86_64-linux/lib/libcudart.so)
list(LENGTH kdtree_cudart_found kdtree_cudart_count)
if(kdtree_cudart_count EQUAL 0)
  message(FATAL_ERROR "no libcudart.so in ${kdtree_site}/nvidia/cu13/lib or under ${kdtree_cuda_home}")
endif()
foreach(path IN LISTS kdtree_cudart_found)
  if(NOT kdtree_site STREQUAL "" AND path MATCHES "^${kdtree_site}")
    set(KDTREE_CUDART ${path})
  elseif(NOT KDTREE_CUDART)
    set(KDTREE_CUDART ${path})
  endif()
endforeach()
set(KDTREE_CUDA_INCLUDE ${kdtree_cuda_home}/include)

set(KDTREE_NVCC_GENCODE)
foreach(arch IN LISTS KDTREE_CUDA_ARCHS)
  if(NOT arch MATCHES "^[0-9]+$" OR arch LESS 80)
    message(FATAL_ERROR "KDTREE_CUDA_ARCHS: '${arch}' is not an architecture like 90 or 120 (80 is the oldest that works)")
  endif()
  list(APPEND KDTREE_NVCC_GENCODE -gencode=arch=compute_${arch},code=sm_${arch})
endforeach()

# Variants of the split kernel that wait for a GPU; 0 is the shipped one. kernel/bench/attempts.sh builds and times them all.
set(KDTREE_ATTEMPT 0 CACHE STRING "Which attempt of src/verify_attn_split.cuh to build; 0 = none")
set_property(CACHE KDTREE_ATTEMPT PROPERTY STRINGS 0 1 2)

# kdtree_add_cuda(<target> <source.cu>...): compiles them and adds the objects; <build>/<name>.ptxas is ptxas' report.
function(kdtree_add_cuda target)
  foreach(source IN LISTS ARGN)
    cmake_path(GET source STEM name)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.cu.o)
    set(strict)
    if(NOT KDTREE_KERNEL_ALONE)
      set(strict -Werror=all-warnings)
    endif()
    add_custom_command(
      OUTPUT ${object} ${CMAKE_CURRENT_BINARY_DIR}/${name}.ptxas
      COMMAND sh ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/logged.sh ${CMAKE_CURRENT_BINARY_DIR}/${name}.ptxas
        ${CMAKE_CUDA_COMPILER_LAUNCHER} ${KDTREE_NVCC} -ccbin ${CMAKE_CXX_COMPILER} -std=c++17 -O3 -lineinfo ${strict}
        -Xcompiler=-fPIC,-fvisibility=hidden -Xptxas=-v ${KDTREE_NVCC_GENCODE} -DKDTREE_WITH_CUDA
        $<$<NOT:$<STREQUAL:${KDTREE_ATTEMPT},0>>:-DKDTREE_ATTEMPT=${KDTREE_ATTEMPT}>
        -I${CMAKE_CURRENT_SOURCE_DIR}/include -MD -MF ${object}.d -MT ${object}
        -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${source} ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/logged.sh
      DEPFILE ${object}.d
      COMMENT "nvcc ${name}.cu"
      COMMAND_EXPAND_LISTS VERBATIM)
    target_sources(${target} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  endforeach()
  target_compile_definitions(${target} PRIVATE KDTREE_WITH_CUDA)
  target_include_directories(${target} SYSTEM PRIVATE ${KDTREE_CUDA_INCLUDE})
  target_link_libraries(${target} PRIVATE ${KDTREE_CUDART})
endfunction()
