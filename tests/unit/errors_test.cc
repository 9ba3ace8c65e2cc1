#include "reprise/model/errors.h"

#include <gtest/gtest.h>

namespace reprise {
namespace {

TEST(Errors, LocationsArePrintedWithoutTheirUnknownParts) {
  EXPECT_EQ(format_location({"a.json", "/stages/3", 7}, "bad"), "a.json:7: at /stages/3: bad");
  EXPECT_EQ(format_location({"a.json", "", 7}, "bad"), "a.json:7: bad");
  EXPECT_EQ(format_location({"a.json", "/x", 0}, "bad"), "a.json: at /x: bad");
  EXPECT_EQ(format_location({"", "/x", 0}, "bad"), "at /x: bad");
  EXPECT_EQ(format_location({"", "", 7}, "bad"), "line 7: bad");
  EXPECT_EQ(format_location({}, "bad"), "bad");
}

TEST(Errors, AnInputErrorSaysWhere) {
  const InputError error("bad", {"a.json", "/x", 2});
  EXPECT_STREQ(error.what(), "a.json:2: at /x: bad");
  EXPECT_EQ(error.where().pointer, "/x");
}

TEST(Errors, ABudgetErrorCarriesTheNumbers) {
  const BudgetError error("over", 100, 90, 20);
  EXPECT_EQ(error.budget(), 100);
  EXPECT_EQ(error.live(), 90);
  EXPECT_EQ(error.requested(), 20);
}

// Users catch one base; a mistake of theirs is never taken for one of ours.
TEST(Errors, TheThreeClassesAreDistinct) {
  EXPECT_THROW(throw InputError("x"), Error);
  EXPECT_THROW(throw InternalError("x"), Error);
  EXPECT_FALSE((std::is_base_of_v<InputError, InternalError>));
  EXPECT_FALSE((std::is_base_of_v<InternalError, InputError>));
}

}  // namespace
}  // namespace reprise
