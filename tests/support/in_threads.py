"""The same work in several threads at once."""

import threading


def run_all(work, count):
    """Run `work(i)` in `count` threads that start together; raise what any of them raised."""
    barrier, failed = threading.Barrier(count), []

    def body(i):
        barrier.wait()
        try:
            work(i)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
