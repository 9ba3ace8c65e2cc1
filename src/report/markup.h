// These functions put text into HTML and SVG. Names come from files of strangers, so any text goes
// into a page through one of these functions.
#pragma once

#include <string>
#include <string_view>

namespace reprise::report {

// Escapes text for element content and for attributes in quotes. Characters with a meaning in HTML
// become entities, control characters become '?', and bytes that are not UTF-8 become U+FFFD.
std::string escaped(std::string_view text);

// Returns a JSON string, quotes included, that may stand in a <script> element: it has no '<', '>',
// '&' and no line separators. Bytes that are not UTF-8 become U+FFFD.
std::string script_string(std::string_view text);

// Returns the text with every byte that is not part of a UTF-8 sequence replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

// Returns at most `characters` of the text, with an ellipsis in place of the middle: both ends of a
// name tell it apart.
std::string shortened(std::string_view text, size_t characters);

}  // namespace reprise::report
