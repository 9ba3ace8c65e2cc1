// An OptionTable binds an options struct to keyword arguments: one row for each argument, with what
// it sets. A new option is one row here, and one line in the stub, which a test compares with the
// names and types of the table. A table with tensors among its arguments needs PyTorch's casters, too.
#pragma once

#include <pybind11/chrono.h>
#include <pybind11/functional.h>
#include <pybind11/stl.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "reprise/model/units.h"
#include "results.h"

namespace pybind11::detail {

// Bytes and times are whole numbers, and a budget is what BudgetArgument says.
template <class Value, class Argument>
struct converted_caster {
  PYBIND11_TYPE_CASTER(Value, make_caster<Argument>::name);
  bool load(handle source, bool convert) {
    make_caster<Argument> caster;
    if (!caster.load(source, convert)) return false;
    if constexpr (std::is_same_v<Value, reprise::Budget>) {
      value = reprise::python::budget_of(cast_op<const Argument&>(caster));
    } else {
      value = Value(cast_op<Argument>(caster));
    }
    return true;
  }
};
template <>
struct type_caster<reprise::Bytes> : converted_caster<reprise::Bytes, int64_t> {};
template <>
struct type_caster<reprise::Nanos> : converted_caster<reprise::Nanos, int64_t> {};
template <>
struct type_caster<reprise::Budget>
    : converted_caster<reprise::Budget, reprise::python::BudgetArgument> {};

}  // namespace pybind11::detail

namespace reprise::python {

namespace internal {

// The second argument of a lambda.
template <class Call>
struct SecondArgument;
template <class Class, class First, class Argument>
struct SecondArgument<void (Class::*)(First, Argument) const> {
  using Type = std::decay_t<Argument>;
};

// Returns the type of an argument as the stub writes it, or "" for one that the stub describes closer.
template <class Value>
constexpr const char* type_in_stub() {
  if constexpr (std::is_same_v<Value, bool>) return "bool";
  if constexpr (std::is_same_v<Value, std::string>) return "str";
  if constexpr (std::is_same_v<Value, Budget>) return "int | str | None";
  if constexpr (std::is_floating_point_v<Value>) return "float";
  if constexpr (std::is_integral_v<Value> || std::is_same_v<Value, Bytes> ||
                std::is_same_v<Value, Nanos>) {
    return "int";
  }
  return "";
}

}  // namespace internal

template <class Options>
class OptionTable {
 public:
  class Row {
   public:
    // The argument has the type of the field.
    template <class Class, class Type>
    Row(const char* name, Type Class::*field)
        : name_(name),
          type_(internal::type_in_stub<Type>()),
          set_([field](Options& options, const pybind11::handle& value) {
            options.*field = value.cast<Type>();
          }) {}
    // `set` puts the argument into the options.
    template <class Set>
    requires(!std::is_member_pointer_v<Set>) Row(const char* name, Set set)
        : name_(name),
          type_(internal::type_in_stub<ArgumentOf<Set>>()),
          set_([set](Options& options, const pybind11::handle& value) {
            set(options, value.cast<ArgumentOf<Set>>());
          }) {}

   private:
    friend OptionTable;
    template <class Set>
    using ArgumentOf = typename internal::SecondArgument<decltype(&Set::operator())>::Type;

    const char* name_;
    const char* type_;
    std::function<void(Options&, const pybind11::handle&)> set_;
  };

  OptionTable(std::initializer_list<Row> rows) : rows_(rows) {}

  // Returns the options with what these keyword arguments set. An argument that is None is as one
  // that was not given. Throws TypeError if there is no such argument or if it has another type.
  Options read(const pybind11::dict& arguments, Options options = {}) const {
    for (const auto& [key, value] : arguments) {
      const Row& row = row_of(pybind11::cast<std::string>(key));
      if (value.is_none()) continue;
      try {
        row.set_(options, value);
      } catch (const pybind11::cast_error&) {
        throw pybind11::type_error(std::string(row.name_) + "= cannot be " +
                                   std::string(pybind11::repr(value)));
      }
    }
    return options;
  }

  // Returns the names and types for the docstring of a function that takes these keyword arguments.
  std::string names() const {
    std::string all = "Keywords:";
    for (const Row& row : rows_) all += std::string("\n") + row.name_ + ": " + row.type_;
    return all;
  }

 private:
  const Row& row_of(const std::string& name) const {
    for (const Row& row : rows_) {
      if (name == row.name_) return row;
    }
    throw pybind11::type_error("there is no argument " + name + "=");
  }

  std::vector<Row> rows_;
};

}  // namespace reprise::python
