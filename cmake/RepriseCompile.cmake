# This file says how every target of this project is compiled.
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()
# reprise, reprise-runtime and the test programs stand directly in the build folder.
if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Precompiled headers need these two to be cached at all.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime ${CCACHE_PROGRAM})
endif()

if(REPRISE_SANITIZE)
  add_compile_options(-fsanitize=${REPRISE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${REPRISE_SANITIZE})
endif()

# Compiles files of a target together. Files whose path in the project matches the first expression are one
# translation unit, files that match the second are another one, and so on. The other files stay alone.
# Nearly all the time of a small file goes into headers. So a first build takes a third of the time, and a
# build after a change takes longer. Names in unnamed namespaces must differ within an expression.
option(REPRISE_UNITY "Compile the files of a room together: faster at first, slower after a change" OFF)
function(reprise_unity target)
  if(NOT REPRISE_UNITY)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC takes the members of a class for those of another file if the class is in an unnamed namespace of an
    # included file.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE path)
    cmake_path(RELATIVE_PATH path BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    foreach(expression IN LISTS ARGN)
      if(path MATCHES "${expression}")
        string(MAKE_C_IDENTIFIER "${expression}" group)
        set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
        break()
      endif()
    endforeach()
  endforeach()
endfunction()

# Optimises a target less: by -O1, or by the level that is given. Planners and kernels are compiled as the build type
# says. In all other code the time of a step is that of LibTorch's kernels, and the compiler would take a third longer
# for nothing.
function(reprise_glue target)
  set(level -O1)
  if(ARGC GREATER 1)
    set(level ${ARGV1})
  endif()
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:${level}>)
endfunction()

# Who changes the code wants to see mistakes; who only uses it wants to see a result.
set(strict ${PROJECT_IS_TOP_LEVEL})
if(SKBUILD)
  set(strict OFF)
endif()
option(REPRISE_STRICT "Warnings are errors, and formats of texts are checked while compiling" ${strict})
function(reprise_warnings target)
  if(REPRISE_STRICT)
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion
                                             -Wnon-virtual-dtor)
    # Other compilers and versions warn of other things, some of them falsely. Their warnings must not end a
    # user's build.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      target_compile_options(${target} PRIVATE -Werror)
    endif()
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
      # GCC 12 gives false alarms on std::string operator+ (GCC bug 105651).
      target_compile_options(${target} PRIVATE -Wno-restrict -Wno-stringop-overflow)
      if(REPRISE_SANITIZE)  # its instrumentation hides from GCC what is initialised
        target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
      endif()
    elseif(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
      # std::stable_sort of libstdc++ 12 itself uses a function that libstdc++ calls deprecated.
      target_compile_options(${target} PRIVATE -Wno-deprecated-declarations)
    endif()
  endif()
endfunction()
