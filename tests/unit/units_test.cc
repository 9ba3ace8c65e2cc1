#include "reprise/model/units.h"

#include <gtest/gtest.h>

#include <limits>

#include "reprise/model/errors.h"

namespace reprise {
namespace {

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

TEST(Units, BytesAreParsedInDecimalAndBinaryUnitsOfAnyCase) {
  EXPECT_EQ(parse_bytes("123456"), Bytes(123456));
  EXPECT_EQ(parse_bytes("0"), Bytes(0));
  EXPECT_EQ(parse_bytes("64 B"), Bytes(64));
  EXPECT_EQ(parse_bytes("3KB"), Bytes(3'000));
  EXPECT_EQ(parse_bytes("3kib"), Bytes(3'072));
  EXPECT_EQ(parse_bytes("700MiB"), Bytes(734'003'200));
  EXPECT_EQ(parse_bytes("700 mb"), Bytes(700'000'000));
  EXPECT_EQ(parse_bytes(" 8 GiB\t"), Bytes(int64_t{8} << 30));
  EXPECT_EQ(parse_bytes("2TB"), Bytes(2'000'000'000'000));
  EXPECT_EQ(parse_bytes("2TiB"), Bytes(int64_t{2} << 40));
}

TEST(Units, FractionsOfBytesAreExactAndRoundedDown) {
  EXPECT_EQ(parse_bytes("1.5GB"), Bytes(1'500'000'000));
  EXPECT_EQ(parse_bytes("0.5 KiB"), Bytes(512));
  EXPECT_EQ(parse_bytes("0.3 KiB"), Bytes(307));              // 307.2
  EXPECT_EQ(parse_bytes("0.1 TiB"), Bytes(109'951'162'777));  // ...777.6
  EXPECT_EQ(parse_bytes("0.29 KB"), Bytes(290));              // 289.999... in floating point
  EXPECT_EQ(parse_bytes("1.9 B"), Bytes(1));
  EXPECT_EQ(parse_bytes("0." + std::string(300, '9') + " KiB"), Bytes(1023));
  EXPECT_EQ(parse_bytes(std::string(300, '0') + "7.50" + std::string(300, '0') + "kb"),
            Bytes(7500));
}

TEST(Units, TheLargestNumberOfBytesIsAcceptedAndOneMoreIsNot) {
  EXPECT_EQ(parse_bytes("9223372036854775807"), Bytes(kLargest));
  EXPECT_THROW(parse_bytes("9223372036854775808"), InputError);
  EXPECT_EQ(parse_bytes("8388607.999999 TiB"), parse_bytes("8388607.999999TiB"));
  EXPECT_THROW(parse_bytes("8388608 TiB"), InputError);
  EXPECT_THROW(parse_bytes(std::string(400, '9')), InputError);
}

TEST(Units, WhatIsNotANumberOfBytesIsRefused) {
  for (const char* text :
       {"",    " ",    "-1",     "-1 MiB", "MiB", "1.",  ".5 MiB", "1.5",     "1e6",     "1,000",
        "1 2", "1 XB", "1 MiBs", "0x10",   "+5",  "60%", "nan",    "1..5 MB", "1.5.5MB", "١"}) {
    EXPECT_THROW(parse_bytes(text), InputError) << text;
  }
}

TEST(Units, MessagesSayWhatIsWrongAndWhatToWrite) {
  try {
    parse_bytes("-3 MiB");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(),
                 "\"-3 MiB\" is negative; write bytes like \"700 MiB\", \"1.5GB\" or \"123456\"");
  }
}

TEST(Units, DurationsAreParsedAndABareNumberIsSeconds) {
  EXPECT_EQ(parse_duration("10s"), Nanos(10'000'000'000));
  EXPECT_EQ(parse_duration("10"), Nanos(10'000'000'000));
  EXPECT_EQ(parse_duration("0.5"), Nanos(500'000'000));
  EXPECT_EQ(parse_duration("250ms"), Nanos(250'000'000));
  EXPECT_EQ(parse_duration("1.5 min"), Nanos(90'000'000'000));
  EXPECT_EQ(parse_duration("100us"), Nanos(100'000));
  EXPECT_EQ(parse_duration("80ns"), Nanos(80));
  EXPECT_EQ(parse_duration("2h"), Nanos(7'200'000'000'000));
  for (const char* text : {"", "-1s", "s", "1 y", "1m", "1e3s", "10000000h"}) {
    EXPECT_THROW(parse_duration(text), InputError) << text;
  }
}

TEST(Units, BytesArePrintedWithThreeOrFourDigitsInBinaryUnits) {
  EXPECT_EQ(format_bytes(Bytes(0)), "0 B");
  EXPECT_EQ(format_bytes(Bytes(64)), "64 B");
  EXPECT_EQ(format_bytes(Bytes(1023)), "1023 B");
  EXPECT_EQ(format_bytes(Bytes(1024)), "1.00 KiB");
  EXPECT_EQ(format_bytes(Bytes(1536)), "1.50 KiB");
  EXPECT_EQ(format_bytes(Bytes(734'003'200)), "700.0 MiB");
  EXPECT_EQ(format_bytes(Bytes(1024 * 1024 - 1)), "1.00 MiB");  // not "1024 KiB"
  EXPECT_EQ(format_bytes(Bytes(int64_t{1020} << 20)), "1020 MiB");
  EXPECT_EQ(format_bytes(Bytes(kLargest)), "8388608 TiB");
  EXPECT_EQ(format_bytes(Bytes(-1536)), "-1.50 KiB");
  EXPECT_EQ(format_bytes(Bytes(std::numeric_limits<int64_t>::min())), "-8388608 TiB");
}

TEST(Units, ExactBytesCarryTheNumber) {
  EXPECT_EQ(format_bytes_exact(Bytes(734'003'200)), "700.0 MiB (734003200 B)");
  EXPECT_EQ(format_bytes_exact(Bytes(64)), "64 B");
}

TEST(Units, DurationsArePrintedWithThreeDigits) {
  EXPECT_EQ(format_duration(Nanos(80)), "80 ns");
  EXPECT_EQ(format_duration(Nanos(12'345)), "12.3 us");
  EXPECT_EQ(format_duration(Nanos(12'300'000)), "12.3 ms");
  EXPECT_EQ(format_duration(Nanos(1'500'000'000)), "1.50 s");
  EXPECT_EQ(format_duration(Nanos(999'999)), "1.00 ms");
  EXPECT_EQ(format_duration(Nanos(59'990'000'000)), "1.00 min");
  EXPECT_EQ(format_duration(Nanos(90'000'000'000)), "1.50 min");
  EXPECT_EQ(format_duration(Nanos(7'200'000'000'000)), "2.00 h");
  EXPECT_EQ(format_duration(Nanos(kLargest)), "2562048 h");
}

// A text from format_bytes is read back to within its digits.
TEST(Units, PrintedBytesCanBeParsed) {
  for (int64_t count = 1; count < (int64_t{1} << 60); count = count * 3 + 1) {
    const auto back = static_cast<double>(parse_bytes(format_bytes(Bytes(count))).count());
    EXPECT_NEAR(back / static_cast<double>(count), 1.0, 0.006) << count;
  }
}

TEST(Units, ArithmeticThatOverflowsThrows) {
  EXPECT_THROW(Bytes(kLargest) + Bytes(1), InputError);
  EXPECT_THROW(Bytes(-kLargest) - Bytes(2), InputError);
  EXPECT_THROW(Nanos(kLargest / 2) * 3, InputError);
  Bytes sum(kLargest);
  EXPECT_THROW(sum += Bytes(1), InputError);
  EXPECT_EQ(sum, Bytes(kLargest));
  EXPECT_EQ(Bytes(3) - Bytes(5), Bytes(-2));
}

TEST(Units, SharesOfTheBaselineAreRoundedDownExactly) {
  EXPECT_EQ(Budget("60%").resolve(Bytes(999)), Bytes(599));  // 599.4
  EXPECT_EQ(Budget("60 %").resolve(Bytes(1000)), Bytes(600));
  EXPECT_EQ(Budget("62.5%").resolve(Bytes(1000)), Bytes(625));
  EXPECT_EQ(Budget("0%").resolve(Bytes(1000)), Bytes(0));
  EXPECT_EQ(Budget("150%").resolve(Bytes(10)), Bytes(15));
  EXPECT_EQ(Budget("100%").resolve(Bytes(kLargest)), Bytes(kLargest));
  EXPECT_EQ(Budget("99.999999999%").resolve(Bytes(kLargest)), Bytes(9'223'372'036'762'542'086));
  EXPECT_THROW(Budget("101%").resolve(Bytes(kLargest)), InputError);
  EXPECT_TRUE(Budget("60%").relative());
  EXPECT_EQ(Budget("60%"), Budget("060.0%"));
}

TEST(Units, AbsoluteBudgetsDoNotDependOnTheBaseline) {
  EXPECT_EQ(Budget("1.5GB").resolve(Bytes(7)), Bytes(1'500'000'000));
  EXPECT_EQ(Budget(Bytes(12)).resolve(Bytes(7)), Bytes(12));
  EXPECT_EQ(Budget("12"), Budget(Bytes(12)));
  EXPECT_FALSE(Budget("12").relative());
  EXPECT_TRUE(Budget().unlimited());
  EXPECT_EQ(Budget().resolve(Bytes(7)), Bytes(kLargest));
}

TEST(Units, BudgetsThatAreNoneAreRefused) {
  for (const char* text : {"", "%", "-60%", "-1", "60%%", "60 MiB%", "0.6", "1e2%", "60% MiB",
                           "99999999999%", "1.0000000001%"}) {
    EXPECT_THROW(Budget{text}, InputError) << text;
  }
  EXPECT_THROW(Budget(Bytes(-1)), InputError);
}

}  // namespace
}  // namespace reprise
