module kfp-tfjob/benchmarks/sink

go 1.21
