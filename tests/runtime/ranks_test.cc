// Tests what ranks tell each other: the encoding, what rank 0 finds for all, differences, and waits
// that a program ends.
#include "runtime/distributed/ranks.h"

#include <stdexcept>
#include <string>

#include "fixture.h"
#include "reprise/runtime/peer_error.h"
#include "reprise/runtime/process_group.h"
#include "runtime/distributed/wire.h"
#include "two_processes.h"

namespace reprise::runtime::testing {
namespace {

using internal::distributed::Packed;
using internal::distributed::Ranks;
using internal::distributed::telling;
using internal::distributed::Unpacked;

class RanksTest : public RuntimeTest {};

TEST(Wire, TextsAndNumbersComeOutAsTheyWentIn) {
  const std::string any("12 a\n\0\xff 3", 9);
  Unpacked rest(Packed().add(any).add(INT64_MIN).add("").add(-1).take());
  EXPECT_EQ(rest.text(), any);
  EXPECT_EQ(rest.number(), INT64_MIN);
  EXPECT_EQ(rest.text(), "");
  EXPECT_FALSE(rest.done());
  EXPECT_EQ(rest.number(), -1);
  EXPECT_TRUE(rest.done());
}

TEST(Wire, WhatNobodyHasPackedIsAnError) {
  EXPECT_THROW(Unpacked("").text(), PeerError);
  EXPECT_THROW(Unpacked("5 abc").text(), PeerError);
  EXPECT_THROW(Unpacked("x abc").text(), PeerError);
  EXPECT_THROW(Unpacked("-1 abc").text(), PeerError);
  EXPECT_THROW(Unpacked("99999999999999999999 abc").text(), PeerError);
  EXPECT_THROW(Unpacked(Packed().add("12a").take()).number(), PeerError);
}

TEST_F(RanksTest, AllGetWhatTheFirstOneFinds) {
  run_ranks(2, [](const ProcessGroup& group) {
    Ranks ranks(group.name());
    const bool first = group.rank() == 0;
    EXPECT_EQ(ranks.by_first("a text", [&] { return first ? "found" : "never"; }), "found");
    try {
      ranks.by_first("a plan", []() -> std::string { throw BudgetError("too small", 1, 2, 3); });
      ADD_FAILURE();
    } catch (const BudgetError& error) {
      EXPECT_STREQ(error.what(), "too small");
      EXPECT_EQ(error.budget(), 1);
      EXPECT_EQ(error.live(), 2);
      EXPECT_EQ(error.requested(), 3);
    }
    try {
      ranks.by_first("a plan", []() -> std::string { throw InputError("a wrong name"); });
      ADD_FAILURE();
    } catch (const InputError& error) {
      EXPECT_STREQ(error.what(), "a wrong name");
    }
    // All of them can go on behind what they have heard alike.
    EXPECT_EQ(ranks.by_first("a text", [] { return "still there"; }), "still there");
    const auto fails = [&] {
      ranks.by_first("a plan", []() -> std::string { throw std::runtime_error("no memory"); });
    };
    if (first) {
      EXPECT_THROW(telling(&ranks, fails), std::runtime_error);
    } else {
      EXPECT_THROW(fails(), PeerError);
    }
  });
}

TEST_F(RanksTest, ADifferenceIsAnErrorOnAll) {
  run_ranks(2, [](const ProcessGroup& group) {
    Ranks ranks(group.name());
    const auto message = [](const Ranks::Difference& found) {
      return found.ranks + ":" + found.first + ":" + found.other;
    };
    ranks.require_equal("same", "a word", message);
    try {
      ranks.require_equal(group.rank() == 0 ? "a" : "b", "a word", message);
      ADD_FAILURE();
    } catch (const InputError& error) {
      EXPECT_STREQ(error.what(), "1:a:b");
    }
  });
}

TEST_F(RanksTest, AProgramEndsAWait) {
  run_ranks(2, [](const ProcessGroup& group) {
    if (group.rank() == 0) {
      Ranks ranks(group.name());
      int looks = 0;
      look_while_waiting([&] {
        if (++looks == 2) throw std::runtime_error("interrupted");
      });
      EXPECT_THROW(ranks.exchange("mine", "its word"), std::runtime_error);
      look_while_waiting({});
      EXPECT_EQ(looks, 2);
    }
    group.barrier();
  });
}

TEST_F(RanksTest, AWaitEndsAtTheTimeoutOfTheStep) {
  run_ranks(2, [](const ProcessGroup& group) {
    if (group.rank() == 0) {
      Ranks ranks(group.name(), std::chrono::milliseconds(50));
      try {
        ranks.exchange("mine", "its word");
        ADD_FAILURE();
      } catch (const PeerError& error) {
        EXPECT_NE(std::string(error.what()).find("has waited 0.05 s for rank 1 (its word)"),
                  std::string::npos)
            << error.what();
      }
      EXPECT_THROW(ranks.exchange("mine", "its word"), PeerError);
    }
    group.barrier();
  });
}

TEST_F(RanksTest, AStepThatNeverBeganIsTold) {
  run_ranks(2, [](const ProcessGroup& group) {
    if (group.rank() == 0) {
      tell_failure(group.name(), "ValueError: no model");
    } else {
      Ranks ranks(group.name());
      try {
        ranks.exchange("mine", "its parts");
        ADD_FAILURE();
      } catch (const PeerError& error) {
        EXPECT_NE(std::string(error.what()).find("rank 0 has failed: ValueError: no model"),
                  std::string::npos)
            << error.what();
      }
    }
    group.barrier();
  });
}

}  // namespace
}  // namespace reprise::runtime::testing
