module robfig

go 1.21

require github.com/robfig/cron v1.2.0
