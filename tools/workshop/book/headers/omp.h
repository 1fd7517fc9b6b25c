/* The book's pages compute on one thread. */
#define omp_get_thread_num() 0
#define omp_get_num_threads() 1
