// Where text goes: results to stdout or a file, messages and a live status line to stderr.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>

#include "reprise/model/observer.h"
#include "reprise/model/plan.h"
#include "reprise/model/units.h"
#include "reprise/report/text.h"

namespace reprise::cli {

// Throws InputError if stdout takes no more (a full disk). A reader that went away is no mistake:
// what it did not want is dropped.
void print(std::string_view text);

// "reprise: <text>" on stderr, with control characters made visible.
void say(std::string_view text);
// A fault: "reprise: error: <text>".
void complain(std::string_view text);

// Throws InputError if `path` could not be written later: a folder that is missing or not writable,
// a read-only file, a path that is a folder. So that nobody waits for a search in vain.
void require_writable(const std::filesystem::path& path);
// write_file() that an interrupt (Ctrl-C) cannot cut in half: it comes before or after.
void write_output(const std::filesystem::path& path, std::string_view content);

// ", 71.9 % of plain training's peak"; empty where that is not known.
std::string share_of_plain(Bytes bytes, const Baseline& plain);

// Plain when stdout is no terminal, or with NO_COLOR set.
TextOptions text_options();

// A line on stderr that is rewritten while work goes on, and wiped at the end. Only on a terminal.
class StatusLine {
 public:
  explicit StatusLine(bool quiet);
  ~StatusLine() { wipe(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Empty when nothing would be shown. Refers to this object.
  Observer observer();
  void wipe();

 private:
  void show(const Progress& progress);

  bool enabled_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace reprise::cli
