# Makes LibTorch the imported target Reprise::torch. Reprise's own build and the installed RepriseConfig.cmake
# share this file.
#
# LibTorch's own TorchConfig.cmake is not loaded. In a build for CUDA it stops unless the CUDA toolkit is
# installed, although Reprise compiles against none of the toolkit's headers. Every package of PyTorch has the
# same folders and libraries, with which PyTorch builds C++ extensions. This file relies on those alone.

# This is the oldest LibTorch that src/runtime/device/compat.h knows.
set(REPRISE_OLDEST_TORCH 2.11)

# Sets `result` to the folder of the package torch of a Python, or to nothing if there is none. The package is
# not imported, because that would take seconds and would load CUDA's libraries.
function(reprise_torch_of_python python result)
  execute_process(COMMAND ${python} -c "from importlib.util import find_spec; \
print(find_spec('torch').submodule_search_locations[0])"
                  OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(${result} "${folder}" PARENT_SCOPE)
endfunction()

# reprise_find_torch([FOLDERS...]) makes Reprise::torch and sets in the caller's scope
#   REPRISE_TORCH_ROOT     the folder that has include/ and lib/; empty if nothing was found
#   REPRISE_TORCH_VERSION  the version, as in 2.14.1
#   REPRISE_TORCH_PROBLEM  why nothing was found
# The first of these that holds a LibTorch counts: the CMake variables REPRISE_TORCH_DIR, Torch_DIR and
# CMAKE_PREFIX_PATH, the environment variables REPRISE_TORCH_DIR, Torch_DIR and CMAKE_PREFIX_PATH, FOLDERS.
# Each may name the package's folder, or share/cmake or share/cmake/Torch in it.
function(reprise_find_torch)
  file(TO_CMAKE_PATH "$ENV{CMAKE_PREFIX_PATH}" prefixes_of_environment)
  set(version_header include/torch/csrc/api/include/torch/version.h)
  set(root "")
  foreach(folder IN LISTS REPRISE_TORCH_DIR Torch_DIR CMAKE_PREFIX_PATH ITEMS $ENV{REPRISE_TORCH_DIR}
                          $ENV{Torch_DIR} ${prefixes_of_environment} ${ARGN})
    string(REGEX REPLACE "/share/cmake(/Torch)?/*$" "" folder "${folder}")
    if(EXISTS "${folder}/${version_header}" AND EXISTS "${folder}/lib/libtorch.so")
      get_filename_component(root "${folder}" ABSOLUTE)
      break()
    endif()
  endforeach()

  set(version "")
  set(problem "")
  if(root)
    set(headers "${root}/${version_header}")
    if(EXISTS "${root}/include/torch/headeronly/version.h")  # has the numbers since 2.10
      set(headers "${root}/include/torch/headeronly/version.h")
    endif()
    file(STRINGS "${headers}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." version)
    if(version VERSION_LESS REPRISE_OLDEST_TORCH)
      set(problem "${root} is LibTorch ${version}; Reprise needs ${REPRISE_OLDEST_TORCH} or newer.")
      set(root "")
    endif()
  else()
    set(problem "Found no LibTorch. Set REPRISE_TORCH_DIR to the folder of the Python package torch, or to an \
unpacked LibTorch: the folder that has include/torch and lib/libtorch.so.")
  endif()
  set(REPRISE_TORCH_ROOT "${root}" PARENT_SCOPE)
  set(REPRISE_TORCH_VERSION "${version}" PARENT_SCOPE)
  set(REPRISE_TORCH_PROBLEM "${problem}" PARENT_SCOPE)
  if(NOT root OR TARGET Reprise::torch)
    return()
  endif()

  add_library(Reprise::torch INTERFACE IMPORTED GLOBAL)
  # LibTorch since 2.11 is built with the C++11 ABI of strings, which is the compiler's default.
  set_target_properties(Reprise::torch PROPERTIES
    INTERFACE_COMPILE_FEATURES cxx_std_20
    INTERFACE_INCLUDE_DIRECTORIES "${root}/include;${root}/include/torch/csrc/api/include")
  # libtorch.so has no symbols of its own, so a linker may drop it. It has to stay, because a program loads
  # the kernels for CUDA through it, and these register themselves.
  set_property(TARGET Reprise::torch PROPERTY INTERFACE_LINK_LIBRARIES
    "-Wl,--push-state,--no-as-needed,\"${root}/lib/libtorch.so\",--pop-state"
    "${root}/lib/libtorch_cpu.so" "${root}/lib/libc10.so")
endfunction()
