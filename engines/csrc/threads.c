#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

enum { MOST_HELPERS = 63, SPINS = 20000 }; /* 0.3 to 1 ms; waking a thread that sleeps costs up to 50 us */

static struct {
    Work work;
    const void *kernel;
    int64_t items;
    int threads;
    atomic_int spins;    /* how long a helper waits awake for the next kernel */
    atomic_llong next;   /* the first item that nobody has taken */
    atomic_int open;     /* whether helpers may enter */
    atomic_int inside;   /* helpers that may be looking at the fields above */
    atomic_uint number;  /* of the kernel, so that a helper enters it once */
    atomic_int sleeping;
    int helpers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER};

static void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void take_items(int thread) {
    const Work work = pool.work;
    for (int64_t i; (i = atomic_fetch_add(&pool.next, 1)) < pool.items;) work(pool.kernel, i, thread);
}

static void await(unsigned seen) {
    for (int i = 0; i < atomic_load(&pool.spins); i++) {
        if (atomic_load(&pool.number) != seen) return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool.lock);
    atomic_fetch_add(&pool.sleeping, 1);
    while (atomic_load(&pool.number) == seen) pthread_cond_wait(&pool.wake, &pool.lock);
    atomic_fetch_sub(&pool.sleeping, 1);
    pthread_mutex_unlock(&pool.lock);
}

static void *help(void *thread) {
    for (unsigned seen = 0;;) {
        await(seen);
        /* Announced before `open` is read, as the caller closes before it reads `inside`: whichever comes first, the
         * fields do not change under a helper that goes on. */
        atomic_fetch_add(&pool.inside, 1);
        seen = atomic_load(&pool.number);
        if (atomic_load(&pool.open) && (int)(intptr_t)thread < pool.threads) take_items((int)(intptr_t)thread);
        atomic_fetch_sub(&pool.inside, 1);
    }
    return 0;
}

static void start_helpers(int wanted) {
    if (pool.helpers >= wanted) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited: signals are for the threads that expect them */
    while (pool.helpers < wanted && pool.helpers < MOST_HELPERS) {
        pthread_t thread;
        if (pthread_create(&thread, 0, help, (void *)(intptr_t)(pool.helpers + 1))) break;
        pthread_detach(thread);
        pool.helpers++;
    }
    pthread_sigmask(SIG_SETMASK, &before, 0);
}

void share(Work work, const void *kernel, int64_t items, int threads, int linger) {
    if (threads <= 1 || items <= 1) {
        for (int64_t i = 0; i < items; i++) work(kernel, i, 0);
        return;
    }
    start_helpers(threads - 1);
    pool.work = work, pool.kernel = kernel, pool.items = items, pool.threads = threads;
    atomic_store(&pool.spins, linger ? SPINS : 0);
    atomic_store(&pool.next, 0);
    atomic_store(&pool.open, 1);
    atomic_fetch_add(&pool.number, 1);
    if (atomic_load(&pool.sleeping)) {
        pthread_mutex_lock(&pool.lock);
        pthread_cond_broadcast(&pool.wake);
        pthread_mutex_unlock(&pool.lock);
    }
    take_items(0);
    atomic_store(&pool.open, 0);
    for (int i = 0; atomic_load(&pool.inside); i++) {
        pause_briefly();
        if (i > SPINS) sched_yield(); /* a helper was interrupted in the middle of an item */
    }
}
