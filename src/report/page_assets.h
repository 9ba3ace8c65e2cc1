// These functions return the style sheet and the script of a report. Both are constant: no part of
// a problem or a plan goes into them. The page forbids every other script by the hash of this one.
#pragma once

#include <string_view>

namespace reprise::report {

std::string_view page_style();
std::string_view page_script();

}  // namespace reprise::report
