/* A pool of helper threads that never makes its caller wait for a thread that the machine is not running.
 *
 * A decoded token is some two hundred kernels of 20 to 200 microseconds. With OpenMP each would end at a barrier, and on
 * a busy machine every barrier costs a time slice (milliseconds), as the thread waited for may not be running at all.
 * Here the items of a kernel lie in the open: whoever is awake takes the next, the caller too, and the caller waits only
 * for helpers that are in the middle of an item. */
#include <stdint.h>

typedef void (*Work)(const void *kernel, int64_t item, int thread);

/* Runs work(kernel, i, thread) for each i < items, on up to `threads` threads, of which the caller is number 0. Calls
 * must not overlap. `linger`: helpers stay awake for a while, as more is to come; without it they leave their cores at once to
 * the threads of torch, whose kernels come next. */
__attribute__((visibility("hidden"))) void share(Work work, const void *kernel, int64_t items, int threads,
                                                  int linger);
