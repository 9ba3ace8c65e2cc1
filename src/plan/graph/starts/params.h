// This file has the constants and switches of the schedules that a search starts from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace reprise::internal::starts {

// Every switch is on by default. The first six are the rows of kStarts (starts/table.h).
struct StartSwitches {
  bool rungs = true;
  bool sections = true;
  bool seeds = true;
  bool cuts = true;
  bool prices = true;
  bool segments = true;
  bool mixes = true;              // mixes of two sets: in rungs, in sections, at prices
  bool put_off = true;            // sets of kept values also with forward ops that wait
  bool cheapest_variants = true;  // all starts use the variants that suit the price of a byte

  bool operator==(const StartSwitches&) const = default;
};

struct RungParams {
  std::vector<int> lengths = {1, 2, 3, 4, 6, 8, 11, 16, 22, 32};  // ops between two rungs of a row
  int halvings = 8;           // prices that are tried for each length
  double largest_price = 64;  // the highest of them, as a multiple of the price at the bound
  double excess = 2;    // price of a byte above the budget, as a multiple of the price at the bound
  size_t mixes = 8;     // pairs of ladders that are mixed
  size_t returned = 5;  // mixes that are starts, and as many ladders

  bool operator==(const RungParams&) const = default;
};

struct PriceParams {
  int rounds = 6;     // changes of the prices, for each first price
  size_t parts = 24;  // of the backward pass; each has a price of its own
  // Shares of the budget, in 64ths. Each gives a first price: that at the instant of the bound, if
  // so much may be live there.
  std::vector<int64_t> shares = {64, 62, 59, 55, 50};
  int64_t near = 2'000;  // a mix that takes less than bound/near longer than the bound is enough
  size_t returned = 6;   // schedules that are starts
  double step = 0.2;     // first change of a price, as a share, at twice the budget

  bool operator==(const PriceParams&) const = default;
};

struct StartParams {
  StartSwitches use;
  double share_for_rungs = 0.5;     // share of the time that is left for the starts
  double share_for_sections = 0.5;  // the same, after the rungs
  int most_sections = 200;          // peaks that are treated, one after the other
  RungParams rungs;
  PriceParams prices;

  bool operator==(const StartParams&) const = default;
};

}  // namespace reprise::internal::starts
