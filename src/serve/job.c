/* job.c - a job's list of events, and its memory. */
#include "serve/job.h"

#include <stdlib.h>

#include "base/array.h"

void job_begin(struct job *job) {
    *job = (struct job){
        .n_top = -1, .answers = 1, .call = -1, .thinking = {.budget = -1, .open = -1, .close = -1}};
    pthread_mutex_init(&job->lock, NULL);
}

void job_free(struct job *job) {
    struct job_news rest = {job->events, job->n_events, job->capacity, false, false};
    job_news_free(&rest);
    free(job->ends);
    free(job->is_enough);
    pthread_mutex_destroy(&job->lock);
}

bool job_append(struct job *job, struct job_event event) {
    pthread_mutex_lock(&job->lock);
    bool has_room = array_grow(&job->events, job->n_events, &job->capacity, sizeof *job->events);
    if (has_room)
        job->events[job->n_events++] = event;
    pthread_mutex_unlock(&job->lock);
    return has_room;
}

void job_take(struct job *job, struct job_news *news) {
    struct job_event *events = news->events;
    size_t capacity = news->capacity;
    pthread_mutex_lock(&job->lock);
    *news = (struct job_news){job->events, job->n_events, job->capacity, job->is_accepted,
                              job->is_over};
    job->events = events;
    job->capacity = capacity;
    job->n_events = 0;
    pthread_mutex_unlock(&job->lock);
}

void job_news_free(struct job_news *news) {
    for (size_t i = 0; i < news->n_events; i++)
        free(news->events[i].logprobs);
    free(news->events);
    *news = (struct job_news){0};
}
