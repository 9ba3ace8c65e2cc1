# Finds what the runtime compiles against where LibTorch is built for CUDA: the headers and the library of CUDA's
# runtime. The toolkit's compiler is not needed. Packages of PyTorch from PyPI bring both along.

# reprise_find_cuda(ROOT) sets in the caller's scope, for the LibTorch in the folder ROOT,
#   REPRISE_CUDA_HEADERS  the folder of cuda_runtime_api.h; empty if there is none, or if the LibTorch is for the CPU
#   REPRISE_CUDA_RUNTIME  the file libcudart.so
# A folder that is set in REPRISE_CUDA_HEADERS before is taken, and an error if it is of no use.
function(reprise_find_cuda root)
  set(asked "${REPRISE_CUDA_HEADERS}")
  set(headers "")
  if(asked AND NOT EXISTS ${root}/lib/libtorch_cuda.so)
    message(FATAL_ERROR "REPRISE_CUDA_HEADERS is set, and ${root} is a LibTorch without CUDA: it has no \
lib/libtorch_cuda.so. Set REPRISE_TORCH_DIR to one for CUDA.")
  endif()
  if(EXISTS ${root}/lib/libtorch_cuda.so)
    if(asked)
      set(folders "${asked}")
    else()
      file(GLOB folders ${root}/../nvidia/cu*/include ${root}/../nvidia/cuda_runtime/include)
      list(APPEND folders /usr/local/cuda/include)
    endif()
    foreach(folder IN LISTS folders)
      if(NOT headers AND EXISTS ${folder}/cuda_runtime_api.h AND EXISTS ${folder}/crt/host_defines.h)
        find_file(runtime NAMES libcudart.so libcudart.so.13 libcudart.so.12 NO_DEFAULT_PATH NO_CACHE
                  PATHS ${folder}/../lib ${folder}/../lib64)
        if(runtime)
          get_filename_component(headers "${folder}" ABSOLUTE)
        endif()
      endif()
    endforeach()
    if(asked AND NOT headers)
      message(FATAL_ERROR "REPRISE_CUDA_HEADERS=${asked} needs cuda_runtime_api.h and crt/host_defines.h, and \
libcudart in ../lib or ../lib64. PyPI has them in nvidia-cuda-runtime and nvidia-cuda-crt.")
    endif()
  endif()
  set(REPRISE_CUDA_HEADERS "${headers}" PARENT_SCOPE)
  set(REPRISE_CUDA_RUNTIME "${runtime}" PARENT_SCOPE)
endfunction()
