// A stream of a stand-in GPU: a thread that runs what is queued, in order and late.

#ifndef STANDIN_STREAM_H_
#define STANDIN_STREAM_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

namespace standin {

// Whether everything that was queued before a moment has run. A recorded event holds the newest of its marks.
class Mark {
 public:
  bool reached() const;
  void Reach();
  void Wait() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable reached_condition_;
  bool reached_ = false;
};

// Streams live as long as the process: TensorFlow destroys devices while threads still run.
class Stream {
 public:
  // ordinal: of the physical GPU.
  explicit Stream(int ordinal);

  // Queues work, which runs on the stream's thread after all earlier work and a random delay. What a kernel that runs on
  // this thread queues, such as the copies of a list's elements, is a part of the kernel, and runs at once.
  void Push(std::function<void()> work);

  // Queues work in each case.
  void PushLater(std::function<void()> work);

  // Queues a mark. Any thread may wait for it.
  std::shared_ptr<Mark> Record();

  // Lets the work that is queued from now on wait for a mark of another stream.
  void WaitFor(std::shared_ptr<Mark> mark);

  // Blocks the caller until the queue is empty.
  void Drain();

  int ordinal() const { return ordinal_; }

 private:
  void Run();
  void Delay();

  const int ordinal_;
  std::mt19937 random_;
  std::thread::id thread_;
  std::mutex mutex_;
  std::condition_variable pushed_;
  std::deque<std::function<void()>> queue_;
};

}  // namespace standin

#endif  // STANDIN_STREAM_H_
