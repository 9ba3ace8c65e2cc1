// A Divider divides by the same number very often.
#pragma once

#include <cstdint>

namespace reprise::internal::chain_slots {

class Divider {
 public:
  // The divisor must be positive.
  explicit Divider(int64_t divisor)
      : divisor_(divisor), inverse_(1.0 / static_cast<double>(divisor)) {}

  // Returns the quotient, rounded down and exact, for |a| <= 2^62. The function multiplies instead
  // of dividing: the estimate is at most a few units off if the quotient is below 2^50.
  int64_t floor(int64_t a) const {
    auto quotient = static_cast<int64_t>(static_cast<double>(a) * inverse_);
    int64_t rest = a - quotient * divisor_;
    for (; rest < 0; rest += divisor_) --quotient;
    for (; rest >= divisor_; rest -= divisor_) ++quotient;
    return quotient;
  }
  int64_t divisor() const { return divisor_; }

 private:
  int64_t divisor_;
  double inverse_;
};

}  // namespace reprise::internal::chain_slots
