// Text inside HTML and SVG. Names come from files of strangers: whatever is put into a page goes
// through one of these.
#pragma once

#include <string>
#include <string_view>

namespace reprise::report {

// For element content and for attributes in quotes: the characters that mean something in HTML are
// written as entities, control characters as '?', what is not UTF-8 as U+FFFD.
std::string escaped(std::string_view text);

// A JSON string, quotes included, that may stand in a <script> element: no '<', '>', '&' and no line
// separators in it. What is not UTF-8 becomes U+FFFD.
std::string script_string(std::string_view text);

// The text with every byte that is not part of a UTF-8 sequence replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

// At most `characters` of the text, with an ellipsis where it was cut. In the middle: both ends of
// a name tell it apart.
std::string shortened(std::string_view text, size_t characters);

}  // namespace reprise::report
