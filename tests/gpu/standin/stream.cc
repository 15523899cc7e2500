#include "stream.h"

#include <chrono>
#include <thread>

#include "gpu.h"

namespace standin {

bool Mark::reached() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return reached_;
}

void Mark::Reach() {
  // Notifies with the lock held: a waiter may be the last owner of this mark.
  std::lock_guard<std::mutex> lock(mutex_);
  reached_ = true;
  reached_condition_.notify_all();
}

void Mark::Wait() const {
  std::unique_lock<std::mutex> lock(mutex_);
  reached_condition_.wait(lock, [this] { return reached_; });
}

Stream::Stream(int ordinal) : ordinal_(ordinal) {
  static std::atomic<unsigned> streams{0};
  random_.seed(Options().seed + streams++);
  std::thread thread([this] { Run(); });
  thread_ = thread.get_id();
  thread.detach();
}

void Stream::Push(std::function<void()> work) {
  if (std::this_thread::get_id() == thread_) {
    work();
  } else {
    PushLater(std::move(work));
  }
}

void Stream::PushLater(std::function<void()> work) {
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.push_back(std::move(work));
  pushed_.notify_one();
}

std::shared_ptr<Mark> Stream::Record() {
  auto mark = std::make_shared<Mark>();
  Push([mark] { mark->Reach(); });
  return mark;
}

void Stream::WaitFor(std::shared_ptr<Mark> mark) {
  Push([mark] { mark->Wait(); });
}

void Stream::Drain() { Record()->Wait(); }

void Stream::Run() {
  while (true) {
    std::function<void()> work;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      pushed_.wait(lock, [this] { return !queue_.empty(); });
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    Delay();
    work();
  }
}

// Sleeps before one of eight pieces of work: more often would only make tests slow.
void Stream::Delay() {
  if (Options().delay <= 0 || random_() % 8) return;
  std::this_thread::sleep_for(std::chrono::microseconds(random_() % (Options().delay + 1)));
}

}  // namespace standin
