// SGEMM and SSYRK for netlib's test program, which is loaded before the BLAS that it was linked with. A legal
// call goes to the process at the other end of two pipes, an illegal one to that BLAS, which reports it as
// the program expects.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static FILE *calls, *results;

static void connect(void) {
    if (calls) return;
    calls = fopen(getenv("FASTSGEMM_CALLS"), "w");
    results = fopen(getenv("FASTSGEMM_RESULTS"), "r");
    if (!calls || !results) exit(2);
}

static int is_one_of(const char *word, const char *letters) {
    return *word && strchr(letters, *word & ~32);
}

static int rows_of(const char *trans, int rows, int columns) {
    return is_one_of(trans, "N") ? rows : columns;
}

static int fits(int ld, int rows) {
    return ld >= (rows > 1 ? rows : 1);
}

static void send(const float *matrix, int ld, int columns) {
    fwrite(matrix, sizeof(float), (size_t)ld * columns, calls);
}

static void receive(float *matrix, int ld, int columns) {
    fflush(calls);
    size_t count = (size_t)ld * columns;
    if (fread(matrix, sizeof(float), count, results) != count) exit(2);
}

void sgemm_(const char *trans_a, const char *trans_b, const int *m, const int *n, const int *k,
            const float *alpha, const float *a, const int *lda, const float *b, const int *ldb,
            const float *beta, float *c, const int *ldc) {
    const char *letters = "NTC";
    connect();
    if (!is_one_of(trans_a, letters) || !is_one_of(trans_b, letters) || *m < 0 || *n < 0 || *k < 0 ||
        !fits(*lda, rows_of(trans_a, *m, *k)) || !fits(*ldb, rows_of(trans_b, *k, *n)) || !fits(*ldc, *m)) {
        void (*other)() = dlsym(RTLD_NEXT, "sgemm_");
        other(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    fprintf(calls, "sgemm %c %c %d %d %d %d %d %d %.9g %.9g\n", *trans_a, *trans_b, *m, *n, *k, *lda, *ldb,
            *ldc, *alpha, *beta);
    send(a, *lda, rows_of(trans_a, *k, *m));
    send(b, *ldb, rows_of(trans_b, *n, *k));
    send(c, *ldc, *n);
    receive(c, *ldc, *n);
}

void ssyrk_(const char *uplo, const char *trans, const int *n, const int *k, const float *alpha,
            const float *a, const int *lda, const float *beta, float *c, const int *ldc) {
    connect();
    if (!is_one_of(uplo, "UL") || !is_one_of(trans, "NTC") || *n < 0 || *k < 0 ||
        !fits(*lda, rows_of(trans, *n, *k)) || !fits(*ldc, *n)) {
        void (*other)() = dlsym(RTLD_NEXT, "ssyrk_");
        other(uplo, trans, n, k, alpha, a, lda, beta, c, ldc);
        return;
    }
    fprintf(calls, "ssyrk %c %c %d %d %d %d %.9g %.9g\n", *uplo, *trans, *n, *k, *lda, *ldc, *alpha, *beta);
    send(a, *lda, rows_of(trans, *k, *n));
    send(c, *ldc, *n);
    receive(c, *ldc, *n);
}
