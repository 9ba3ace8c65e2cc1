# Stands for CMake's file of this name, so that the kit's build needs no pkg-config. Nettle, with the kit's headers
# and static library, is all that Reprise asks it for.
function(pkg_check_modules prefix)
  if(NOT prefix STREQUAL "NETTLE")
    message(FATAL_ERROR "The kit's FindPkgConfig.cmake knows nettle alone, and the build asks for ${ARGN}. \
Add it to scripts/gpu_kit and pack the kit again.")
  endif()
  if(NOT TARGET PkgConfig::NETTLE)
    add_library(PkgConfig::NETTLE INTERFACE IMPORTED GLOBAL)
    set_target_properties(PkgConfig::NETTLE PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../include
      INTERFACE_LINK_LIBRARIES ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../lib/libnettle.a)
  endif()
endfunction()
set(PkgConfig_FOUND TRUE)
