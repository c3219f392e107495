-- pg_cron drives the scanner where it is there; elsewhere the daemon ticks. `select paylatch.schedule()` does the same
-- again later, after pg_cron has been installed.

select paylatch.schedule();
