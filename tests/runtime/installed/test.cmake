# Installs a build into a folder of its own, builds the project beside this file against the installed build,
# and runs that project.
#   cmake -DBUILD=... -DFOLDER=... -DTORCH=... -P test.cmake
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(failed)
    string(REPLACE ";" " " words "${ARGN}")
    message(FATAL_ERROR "failed: ${words}\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${FOLDER})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${FOLDER}/prefix)
foreach(path bin/reprise bin/reprise-runtime include/reprise/runtime.h)
  if(NOT EXISTS ${FOLDER}/prefix/${path})
    message(FATAL_ERROR "${path} was not installed")
  endif()
endforeach()
if(EXISTS ${FOLDER}/prefix/reprise)
  message(FATAL_ERROR "the Python package does not belong into the prefix: pip installs it")
endif()
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${FOLDER}/build -G Ninja
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH=${FOLDER}/prefix -DREPRISE_TORCH_DIR=${TORCH})
run(${CMAKE_COMMAND} --build ${FOLDER}/build)
run(${FOLDER}/build/consumer)

# A LibTorch that does not fit is refused, with a message that names it.
function(refused torch message)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env --unset=REPRISE_TORCH_DIR --unset=CMAKE_PREFIX_PATH
                          ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${FOLDER}/refused -G Ninja
                          -DCMAKE_PREFIX_PATH=${FOLDER}/prefix -DREPRISE_TORCH_DIR=${torch}
                  RESULT_VARIABLE failed OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")  # CMake breaks the lines of its messages
  string(FIND "${output}" "${message}" position)
  if(NOT failed OR position EQUAL -1)
    message(FATAL_ERROR "'${torch}' had to be refused with '${message}', but CMake said:\n${output}")
  endif()
endfunction()

foreach(minor 10 1000)
  set(headers ${FOLDER}/torch-2.${minor}/include/torch)
  file(WRITE ${headers}/headeronly/version.h
       "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR ${minor}\n#define TORCH_VERSION_PATCH 3\n")
  file(WRITE ${headers}/csrc/api/include/torch/version.h "#include <torch/headeronly/version.h>\n")
  file(WRITE ${FOLDER}/torch-2.${minor}/lib/libtorch.so "")
endforeach()
refused(${FOLDER}/torch-2.10 "torch-2.10 is LibTorch 2.10.3; Reprise needs 2.11 or newer")
refused(${FOLDER}/torch-2.1000/share/cmake "torch-2.1000 is 2.1000.3")
refused("" "Found no LibTorch")
file(REMOVE_RECURSE ${FOLDER})
