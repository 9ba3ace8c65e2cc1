// Puts sends, receives and waits into orders that have none.
#pragma once

#include <cstdint>

#include "plan/pipeline/layout.h"
#include "plan/pipeline/orders.h"
#include "reprise/model/pipeline.h"

namespace reprise::internal::pipeline {

// A Slack says how many compute actions early room for a message is made, and how many compute
// actions late a sender waits for it. Larger numbers hide more of the links and take more bytes.
struct Slack {
  int64_t early = 1;
  int64_t late = 1;

  bool operator==(const Slack&) const = default;
};

// Returns the orders with a send behind each action whose result another device reads, a wait for it
// later, and a receive before the action that reads it. Room for the messages of a link is made in
// the order in which they are sent, so that both ends agree. A wait comes before the backward that
// gives back what was sent. Nothing says that the result runs: with too little slack devices may
// wait for each other. O(actions).
Orders with_messages(const Layout& layout, const Orders& orders, const Slack& slack);

}  // namespace reprise::internal::pipeline
