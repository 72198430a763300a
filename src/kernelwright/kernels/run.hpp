// The kernels of a call one after another: what C++ does between two calls that only torch makes.
//
// A run is straight-line code over a Run: it takes memory for what only its kernels see, and starts
// these. The memory is one piece, which Python brings; how much there must be is what the same code
// says when it is run without tensors: then it starts nothing and counts what is taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace kw {

// What starts a kernel: addresses, and sizes with the device and the stream behind them.
using Launcher = int (*)(void* const* tensors, const int64_t* numbers);

// Is told the name of each kernel before it starts, if anybody wants to know.
inline void (*watcher)(const char* name) = nullptr;
// The kernel that this thread started last, for errors.
inline thread_local const char* last_launch = "";

class Run {
 public:
  // The memory is the last of the tensors; the device and the stream are the last two numbers.
  Run(void* const* tensors, int memory, const int64_t* last)
      : tensors_(tensors),
        memory_(tensors == nullptr ? nullptr : static_cast<char*>(tensors[memory])),
        last_{last[0], last[1]} {}

  void* given(int i) const { return tensors_ == nullptr ? nullptr : tensors_[i]; }

  // Memory for so many bytes, until the Inside around it ends.
  void* take(int64_t bytes) {
    char* const found = tensors_ == nullptr ? nullptr : memory_ + taken_;
    taken_ += (bytes + kApart - 1) / kApart * kApart;
    most_ = taken_ > most_ ? taken_ : most_;
    return found;
  }

  // A kernel on what it reads and what it writes, unless one before it could not be started.
  template <class... Sizes>
  void launch(const char* name, Launcher launcher, std::initializer_list<void*> tensors,
              Sizes... sizes) {
    if (tensors_ == nullptr || error_ != 0) return;
    if (watcher != nullptr) watcher(name);
    last_launch = name;
    const int64_t numbers[] = {static_cast<int64_t>(sizes)..., last_[0], last_[1]};
    error_ = launcher(tensors.begin(), numbers);
  }

  // The error of a launch, or, without tensors, how much memory was taken at most.
  int ended(int64_t* room) const {
    if (tensors_ == nullptr) *room = most_;
    return error_;
  }

 private:
  friend class Inside;
  static constexpr int64_t kApart = 256;  // bytes at whose multiples memory begins

  void* const* tensors_;
  char* memory_;
  int64_t last_[2];
  int64_t taken_ = 0;
  int64_t most_ = 0;
  int error_ = 0;
};

// What is taken while this exists is given back at its end: kernels run in the order of launches.
class Inside {
 public:
  explicit Inside(Run& run) : run_(run), before_(run.taken_) {}
  ~Inside() { run_.taken_ = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  Run& run_;
  int64_t before_;
};

}  // namespace kw
