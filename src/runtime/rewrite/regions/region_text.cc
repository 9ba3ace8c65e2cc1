#include "runtime/rewrite/regions/region_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "runtime/rewrite/regions/region_call.h"
#include "runtime/rewrite/words.h"

namespace reprise::runtime::internal::rewrite {

namespace {

std::string name_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return "float64";
    case at::kFloat:
      return "float32";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kBool:
      return "bool";
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    default:
      return "int64";
  }
}

std::string text_of(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  const std::string text = fmt::format("{:.17g}", number);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::string list_of(const std::vector<int64_t>& numbers) {
  return fmt::format("({})", fmt::join(numbers, ", "));
}

// Python reads (3) as a number.
std::string tuple_of(const std::vector<int64_t>& numbers) {
  return fmt::format("[{}]", fmt::join(numbers, ", "));
}

std::string line_of(const char* kind, const std::string& name, at::ScalarType type,
                    const Geometry& look) {
  return fmt::format("{} {} {} {} {}\n", kind, name, name_of(type), list_of(look.sizes),
                     list_of(look.strides));
}

class Writer {
 public:
  Writer(const TileSource& source, const Recording& recording)
      : source_(source), recording_(recording) {}

  RegionText run() {
    leave_out_unneeded();
    std::string body;
    for (const ElementCall& call : made_.calls) body += line_of(call);
    std::string text;
    for (size_t k = 0; k < made_.inputs.size(); ++k) {
      const RegionText::Input& input = made_.inputs[k];
      text += rewrite::line_of("in", fmt::format("a{}", k),
                               input.number.value_or(input.ref.geometry.dtype), input.ref.geometry);
    }
    text += body;
    for (const int32_t output : source_.outputs) {
      const TensorRef& ref = results_.at(output);
      made_.outputs.push_back(ref);
      text += rewrite::line_of("out", names_.at(output), ref.geometry.dtype, ref.geometry);
    }
    made_.text = std::move(text);
    made_.operators = operators();
    made_.in_order = in_order_;
    return std::move(made_);
  }

 private:
  void leave_out_unneeded() {
    std::set<int32_t> needed(source_.outputs.begin(), source_.outputs.end());
    for (size_t k = source_.calls.size(); k-- > 0;) {
      const ElementCall& call = source_.calls[k];
      if (!needed.contains(call.result.index)) continue;
      for (const Argument& argument : call.arguments) {
        if (argument.shape_only) continue;
        for (const TensorRef& ref : argument.tensors) {
          if (ref.memory == Memory::kValue) needed.insert(ref.index);
        }
      }
      made_.calls.push_back(call);
    }
    std::ranges::reverse(made_.calls);
  }

  std::string input(const TensorRef& ref, std::optional<at::ScalarType> number) {
    RegionText::Input wanted{ref, number};
    const auto known = std::ranges::find(made_.inputs, wanted);
    const auto position = known - made_.inputs.begin();
    if (known == made_.inputs.end()) made_.inputs.push_back(std::move(wanted));
    return fmt::format("a{}", position);
  }

  std::string operand(const ElementCall& call, const TensorRef& ref, bool is_number) {
    const auto made = names_.find(ref.index);
    if (ref.memory != Memory::kValue || made == names_.end()) {
      const at::ScalarType type =
          c10::isReducedFloatingType(call.type) ? at::ScalarType(at::kFloat) : call.type;
      return input(ref, is_number ? std::optional(type) : std::nullopt);
    }
    const Geometry& own = results_.at(ref.index).geometry;
    if (own.sizes == ref.geometry.sizes && own.strides == ref.geometry.strides &&
        ref.geometry.offset == 0) {
      return made->second;
    }
    in_order_ = false;
    return fmt::format("look({}, {}, {}, {}, {}, {})", made->second, tuple_of(ref.geometry.sizes),
                       tuple_of(ref.geometry.strides), ref.geometry.offset, tuple_of(own.sizes),
                       tuple_of(own.strides));
  }

  std::string line_of(const ElementCall& call) {
    const std::string& full = call.op->operator_name().name;
    const auto& formals = call.op->schema().arguments();
    const std::string type = "torch." + name_of(call.result.geometry.dtype);
    const bool is_cast = full == "aten::_to_copy" || full == "aten::clone";
    bool has_number = false;
    for (const Argument& argument : call.arguments) {
      has_number = has_number || is_number(argument, recording_);
    }
    const bool is_wide = has_number && c10::isReducedFloatingType(call.type);
    std::vector<std::string> arguments;
    for (size_t a = 0; a < call.arguments.size(); ++a) {
      const Argument& argument = call.arguments[a];
      if (argument.kind == ArgumentKind::kConstant) {
        if (is_cast) continue;
        const std::string text = rewrite::text_of(argument.constant, formals[a]).value_or("None");
        arguments.push_back(formals[a].kwarg_only() ? formals[a].name() + "=" + text : text);
        continue;
      }
      std::vector<std::string> tensors;
      for (const TensorRef& ref : argument.tensors) {
        const bool number = is_number(argument, recording_);
        std::string one = operand(call, ref, number);
        if (is_wide && !number) one = fmt::format("cast({}, torch.float32)", one);
        tensors.push_back(std::move(one));
      }
      if (argument.kind == ArgumentKind::kTensorList) {
        in_order_ = false;
        arguments.push_back(fmt::format("[{}]", fmt::join(tensors, ", ")));
      } else {
        arguments.push_back(tensors[0]);
      }
    }
    in_order_ = in_order_ && is_element_wise(recording_.calls[call.call], *call.op);
    std::string text;
    const std::string& overload = call.op->operator_name().overload_name;
    if (is_cast) {
      text = fmt::format("cast({}, {})", arguments[0], type);
    } else {
      text = fmt::format("aten.{}.{}({})", call.name(), overload.empty() ? "default" : overload,
                         fmt::join(arguments, ", "));
    }
    const bool is_over = recording_.values[call.result.index].previous >= 0;
    if (!is_cast && (is_wide || is_over)) text = fmt::format("cast({}, {})", text, type);
    const std::string name = fmt::format("v{}", names_.size());
    names_[call.result.index] = name;
    results_[call.result.index] = call.result;
    return fmt::format("{} = {}\n", name, text);
  }

  std::string operators() const {
    std::vector<std::pair<std::string, int>> counts;
    for (const ElementCall& call : made_.calls) {
      const std::string name = call.name();
      const auto known = std::ranges::find(counts, name, &std::pair<std::string, int>::first);
      if (known == counts.end()) {
        counts.emplace_back(name, 1);
      } else {
        ++known->second;
      }
    }
    std::vector<std::string> all;
    for (const auto& [name, count] : counts) {
      all.push_back(count > 1 ? fmt::format("{}*{}", name, count) : name);
    }
    return fmt::format("{}", fmt::join(all, "+"));
  }

  const TileSource& source_;
  const Recording& recording_;
  RegionText made_;
  std::map<int32_t, std::string> names_;  // by value
  std::map<int32_t, TensorRef> results_;  // by value
  bool in_order_ = true;
};

}  // namespace

std::optional<std::string> text_of(const c10::IValue& constant, const c10::Argument& formal) {
  c10::TypePtr type = formal.real_type();
  if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (constant.isNone()) return "None";
  switch (type->kind()) {
    case c10::TypeKind::ScalarTypeType:
      return "torch." + name_of(constant.toScalarType());
    case c10::TypeKind::MemoryFormatType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::DeviceObjType:
      return std::nullopt;
    default:
      break;
  }
  if (constant.isBool()) return constant.toBool() ? "True" : "False";
  if (constant.isInt()) return fmt::format("{}", constant.toInt());
  if (constant.isDouble()) return text_of(constant.toDouble());
  if (constant.isIntList()) return tuple_of(constant.toIntVector());
  if (constant.isString()) {
    const std::string& text = constant.toStringRef();
    if (text.find_first_of("'\\\n") != std::string::npos) return std::nullopt;
    return "'" + text + "'";
  }
  return std::nullopt;
}

RegionText text_of(const TileSource& source, const Recording& recording) {
  return Writer(source, recording).run();
}

}  // namespace reprise::runtime::internal::rewrite
