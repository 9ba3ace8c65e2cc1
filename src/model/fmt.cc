// The functions of fmt that are no templates, and the instances of its templates that a library of fmt holds.
// Debian's package has fmt as headers and as a shared library. Headers alone cost every file that formats text two
// seconds of compile time, and a shared library would have to be there where the programs run. So the headers are
// compiled once, here. The list of instances is for fmt 9; with other versions, CMakeLists.txt uses the headers alone.
#include <fmt/core.h>

#ifndef FMT_HEADER_ONLY
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
namespace detail {
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template locale_ref::locale_ref(const std::locale&);
template auto locale_ref::get<std::locale>() const -> std::locale;
template auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl(locale_ref) -> char;
}  // namespace detail
FMT_END_NAMESPACE
#endif
