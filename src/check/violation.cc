#include "reprise/check/verify.h"

namespace reprise {

const char* to_string(ViolationKind kind) {
  switch (kind) {
    case ViolationKind::kUnknownId:
      return "unknown id";
    case ViolationKind::kNotLive:
      return "not live";
    case ViolationKind::kInputFreed:
      return "input freed";
    case ViolationKind::kMissingRun:
      return "missing run";
    case ViolationKind::kRepeatedRun:
      return "repeated run";
    case ViolationKind::kOrder:
      return "order";
    case ViolationKind::kRole:
      return "role";
    case ViolationKind::kChoice:
      return "choice";
    case ViolationKind::kMissingResult:
      return "missing result";
    case ViolationKind::kLeftOver:
      return "left over";
    case ViolationKind::kOverBudget:
      return "over budget";
    case ViolationKind::kFalseClaim:
      return "false claim";
    case ViolationKind::kOtherProblem:
      return "other problem";
    case ViolationKind::kAlreadyThere:
      return "already there";
    case ViolationKind::kUnderWay:
      return "under way";
    case ViolationKind::kPart:
      return "part";
    case ViolationKind::kUnmatched:
      return "unmatched";
    case ViolationKind::kDeadlock:
      return "deadlock";
  }
  return "?";
}

}  // namespace reprise
